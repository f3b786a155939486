"""Table sinks: reading, writing and committing each kind of table; imported only by runs that write one."""
