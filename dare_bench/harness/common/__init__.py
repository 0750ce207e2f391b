"""What both harnesses use: requests, local data, running generated code, the scoring process, repeats."""
