"""The command line: names and numbers become calls of the library."""
