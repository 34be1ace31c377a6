"""A study as one HTML file that needs nothing else, and as figures.

StudyRecord ──collect──▶ Facts ─┐
     └──figures──▶ Plotly ──────┴──page──▶ HTML ──writing──▶ a file, or serving ──▶ a browser
"""
