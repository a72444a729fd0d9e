"""The judges of checks of one host. Pure: measurements in, what they mean out."""
