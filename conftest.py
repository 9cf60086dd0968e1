"""Collect each file once, under the name it is imported by."""

# zcompile/passes and zcompile/runtime are links to these two.
collect_ignore = ["passes", "runtime"]
