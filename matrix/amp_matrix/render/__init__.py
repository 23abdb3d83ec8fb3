"""Surveys and plans in the forms that people and programs read: one module a form, each a pure function.

`terminal.matrix`, `markdown.render`, `csv.render`, `json.render`, `html.render`. Plans are passed in; nothing here
chooses. Importing this package imports none of its forms.
"""
