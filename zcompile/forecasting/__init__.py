"""What a training run would hold, move and take, before any of its memory exists.

`zcompile.forecasting.forecast.forecast` is the entry; the rest of the folder captures a model
without its weights, plans its iteration and sums up.
"""
