"""The corpus of the English encoder that comes with the package."""
