"""Inspecting a model: words and their anchors, a text token by token, and the page that shows both."""
