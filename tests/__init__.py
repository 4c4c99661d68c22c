"""Tests of Lithify, laid out like the package."""
