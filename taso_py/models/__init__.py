"""Models to optimize: files, functions, exported programs and the zoo, read and imported."""
