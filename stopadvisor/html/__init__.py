"""The report as one HTML file; needs the extra `report`, which is imported on first use."""
