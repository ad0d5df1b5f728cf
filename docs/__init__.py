"""Documents, and what generates them: pictures, tables, glossary, cheat sheet, the site."""
