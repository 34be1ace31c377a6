"""Report of a study as a self-contained HTML file, as figures, and in a browser.

StudyRecord ──collect──▶ Facts ─┐
     └──figures──▶ Plotly ──────┴──page──▶ HTML ──writing──▶ a file, or serving ──▶ a browser
"""
