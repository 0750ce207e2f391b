"""Engines that sample by themselves, behind the protocol of a loaded model: lmdeploy, SGLang, OpenAI's interface.

docs/engines.md says what each of them can do, and which of their fields were read where.
"""
