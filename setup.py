"""All about the package is in pyproject.toml; this gives `pip install -e` its data files.

setuptools installs them from a wheel; with -e it asks the distribution `has_data`, which
its own class cannot answer, and leaves them out.
"""

from setuptools import Distribution, setup


class WithData(Distribution):
    """A distribution that says whether it has files for the environment."""

    def has_data(self) -> bool:
        return self.has_data_files()


setup(distclass=WithData)
