"""Closed forms of memory and bandwidth: the equations of the ZeRO papers, in sympy.

Every function returns an expression, so that a question such as "from which bandwidth on is
the efficiency 90 %" is solved and not searched.
"""
