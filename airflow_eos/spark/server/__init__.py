"""A Spark Connect server that the tasks of one host share: started, watched and ended by commands."""
