"""Files: written whole or not at all, read without executing anything, mapped if large."""
