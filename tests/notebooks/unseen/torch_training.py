# %%
import torch
from torch import nn
torch.manual_seed(4)
# %%
data = torch.linspace(-3, 3, 64).unsqueeze(1)
target = torch.sin(data) + 0.05 * torch.randn_like(data)
target[:3].flatten()
# %%
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.layers(x)

net = Net(16)
sum(p.numel() for p in net.parameters())
# %%
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
# %%
def train(epochs):
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(data), target)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(round(loss.item(), 5))
    return losses

train(5)
# %%
net.steps, schedule.get_last_lr()
# %%
train(20)[-3:], schedule.get_last_lr()
# %%
first = net.layers[0].weight
first.grad.abs().sum(), optimizer.state[first]["step"]
# %%
tied = nn.Linear(16, 16, bias=False)
tied.weight = net.layers[0].weight
tied.weight is net.layers[0].weight, first is tied.weight
# %%
norms = []
handle = net.layers[1].register_forward_hook(lambda module, inputs, output: norms.append(round(output.norm().item(), 4)))
net.eval()
net(data[:4]).flatten(), norms
# %%
with torch.no_grad():
    first.mul_(0.5)
net(data[:2]).flatten(), len(norms)
# %%
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, target), batch_size=16, shuffle=True)
batches = iter(loader)
next(batches)[0].mean()
# %%
next(batches)[0].mean()
# %%
torch.rand(2), torch.initial_seed()
# %%
loss = nn.functional.mse_loss(net(data), target)
loss.item()
# %%
window = data[10:20]
window.zero_()
data[9:12].flatten(), window.storage().data_ptr() == data.storage().data_ptr()
# %%
net.train()
train(3), net.steps, len(norms)
# %%
handle.remove()
net(data).shape, len(norms)
