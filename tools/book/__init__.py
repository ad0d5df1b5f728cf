"""The static site: lessons as pages, with their pictures and search. Run: make site"""
