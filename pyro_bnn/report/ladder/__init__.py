"""A reference without being told how: engines tried in turn until one passes the checks."""
