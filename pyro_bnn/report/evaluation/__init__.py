"""Every number of the report, computed once a method."""
