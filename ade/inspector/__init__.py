"""Looking into a model: words and anchors, a text token by token, and the page that shows them."""
