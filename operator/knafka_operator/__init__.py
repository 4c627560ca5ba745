"""The control plane: from what is declared in Kubernetes to what the functions are told.

`resources` reads documents, `desired` derives the contract from them, `scaler` holds drains open
where there is lag. All three are pure or take their IO as Protocols, so the local mode shares them.
"""
