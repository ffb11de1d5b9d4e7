"""`llmlab serve`: a streaming API with stats, recording proxies for the clients of Ollama and OpenAI, and a page."""

from llmlab.errors import Exit
from llmlab.serve.settings import ServeSettings

__all__ = ["ServeSettings", "serve"]


async def serve(settings: ServeSettings) -> Exit:
    """Serve until a signal comes: 130 after Ctrl-C, 0 after SIGTERM. Raises LabError where it cannot start."""
    from llmlab.serve.server import run

    return await run(settings)
