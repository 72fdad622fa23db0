"""Training without torch: convex fits of a head and of n-gram scores, cross-validation, calibration, intervals."""
