"""Files of HAProxy with times in which a busy machine answers: each request gets a decision."""

import re


def patient(text):
    text = text.replace("timeout server 300ms", "timeout server 30s")
    return re.sub(r"timeout (connect|check|processing|hello) \S+", r"timeout \1 10s", text)
