"""``python -m holdfast`` is the command line."""

from holdfast.surfaces.cli import main

if __name__ == "__main__":
    main()
