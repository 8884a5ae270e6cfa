"""The optimization job: choose engines, search, evaluate the finalists, report and save the result."""
