"""Homes, transfers and executors: the only code that touches memory, files and threads."""

if __name__ != "zcompile.runtime":
    raise ImportError("import zcompile.runtime; the folder is reached through the package")
