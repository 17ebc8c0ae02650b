"""Simulations that show that the certificates are true, and that the check would see it if not."""
