"""Task decorators. Importing them is cheap, because Dag files do so at every parse."""
