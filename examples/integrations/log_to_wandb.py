"""Keep the step time and the table of kernels in Weights & Biases: ``python log_to_wandb.py RUN``."""

import sys

import wandb

import hpcprof

results = hpcprof.open(sys.argv[1])
with wandb.init(project="hpcprof", name=results.id) as run:
    run.summary["step_p50_ns"] = results.explain().step.wall_p50_ns
    run.log({"kernels": wandb.Table(dataframe=results.kernels())})
