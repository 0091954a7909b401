"""The step time of a run as a figure of ReFrame.

``RUN=ID HPCPROF_RUNS=$PWD/runs reframe -c reframe_check.py -r --performance-report``
"""

import os

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class StepTime(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "hpcprof"
    executable_opts = ["explain", os.environ.get("RUN", "last"), "--format", "json"]

    @sanity_function
    def is_explained(self):
        return sn.assert_found('"findings"', self.stdout)

    @performance_function("ns")
    def step_p50(self):
        return sn.extractsingle(r'"wall_p50_ns": (\d+)', self.stdout, 1, int)
