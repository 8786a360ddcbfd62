"""A report of posteriors that were saved as NetCDF files."""
