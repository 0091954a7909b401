"""Keep the step time and its causes as metrics of an MLflow run: ``python log_to_mlflow.py RUN``."""

import sys

import mlflow

import hpcprof

results = hpcprof.open(sys.argv[1])
explanation = results.explain()
with mlflow.start_run(run_name=results.id):
    mlflow.log_metric("step_p50_ns", explanation.step.wall_p50_ns)
    mlflow.log_metrics(
        {f"{one.cause.value}_ns": one.saving_ns for one in explanation.shown() if one.saving_ns}
    )
