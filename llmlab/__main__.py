"""`python -m llmlab`."""

from llmlab.cli import main

if __name__ == "__main__":
    main()
