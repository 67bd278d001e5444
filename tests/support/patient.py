"""Files of HAProxy with times in which a busy machine answers: each request gets a decision."""

import re


def patient(text):
    text = text.replace("timeout server 300ms", "timeout server 90s")
    return re.sub(r"timeout (connect|check|processing|hello) \S+", r"timeout \1 60s", text)
