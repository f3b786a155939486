"""Sinks that are tables: how each is read, written and committed. Imported only by runs that write one."""
