"""llmlab measures, talks to and serves the language models that run on your own machine."""

__version__ = "0.1.0"
