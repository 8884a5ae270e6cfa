"""Sources of models: files, functions, exported programs and the zoo."""
