"""The report as files: a page, a table, trees."""
