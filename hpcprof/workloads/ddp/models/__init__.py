"""The built-in models. Each defines ``build()``, ``batch(parameters, device)`` and ``loss(model, inputs)``.

A module may define ``optimizer(parameters)``; otherwise the optimizer of model files is used. Data come from
torch's default generator, which the workload seeds.
"""
