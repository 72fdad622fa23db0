"""Other libraries: scikit-learn, sentence-transformers, ONNX, Ray Data."""
