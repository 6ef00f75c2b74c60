// Stands in for cuRAND in tests: ONNX Runtime links to it, and calls nothing here.
