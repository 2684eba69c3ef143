"""What a learner sees and presses, in a real JupyterLab in a real Chromium."""
