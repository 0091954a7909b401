"""Container images with the profilers: their build files, and the engines that build and run them."""
