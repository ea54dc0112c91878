"""What goes wrong while requests are served, and what that costs them.

Requests of all arms (plain, fixed settings, auto) take turns in one timeline, each cycle with one
prompt; between two cycles something goes wrong, or is well again. Nothing is compared with another
time: a noisy machine is noisy for all arms.
"""
