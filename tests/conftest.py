import torch

torch.set_num_threads(1)  # bit-identity across processes, and no fight over the cores
