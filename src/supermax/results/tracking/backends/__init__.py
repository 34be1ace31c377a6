"""Trackers: MLflow, TensorBoard, Weights & Biases. Each implements `backend.Backend`."""
