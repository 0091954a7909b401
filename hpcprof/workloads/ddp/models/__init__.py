"""The built-in models: ``build()``, ``batch(parameters, device)`` and ``loss(model, inputs)`` each.

A module may have ``optimizer(parameters)``; without it the model file's default is taken. Data are drawn
from torch's default generator, which the workload seeds.
"""
