"""What is measured: one file a subject, each with its tables (`TABLES`) and how its runs are made (`KINDS`)."""
