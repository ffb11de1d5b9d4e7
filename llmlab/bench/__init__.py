"""The bench: four experiments on one model, every call a row."""

from llmlab.bench.options import BenchOptions
from llmlab.bench.plan import BENCH_VERSION, Plan, make_plan
from llmlab.bench.run import Bench, run_bench

__all__ = ["BENCH_VERSION", "Bench", "BenchOptions", "Plan", "make_plan", "run_bench"]
